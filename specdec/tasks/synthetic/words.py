"""The words of both languages, as data: a line is a concept, and `lexicon` reads it.

Left of ` = ` is English, right is German. Each side lists its words for the concept, with their
weights behind a *, 1 if there is none. An underscore is a space.
"""
# ruff: noqa: E501

NOUNS = """
[person]
teacher teachers = Lehrer m Lehrer *3, Lehrerin f Lehrerinnen *2
doctor doctors *3, physician physicians = Arzt m Ärzte *3, Ärztin f Ärztinnen *2
student students = Student m! Studenten *3, Studentin f Studentinnen *2
neighbor neighbors = Nachbar m! Nachbarn *3, Nachbarin f Nachbarinnen *2
colleague colleagues *3, coworker coworkers = Kollege m! Kollegen *3, Kollegin f Kolleginnen *2
customer customers = Kunde m! Kunden *3, Kundin f Kundinnen *1
boss bosses = Chef m Chefs *3, Chefin f Chefinnen *2
farmer farmers = Bauer m! Bauern *3, Landwirt m Landwirte *1
baker bakers = Bäcker m Bäcker *4, Bäckerin f Bäckerinnen *1
singer singers = Sänger m Sänger *1, Sängerin f Sängerinnen *2
cook cooks *2, chef chefs = Koch m Köche *3, Köchin f Köchinnen *1
policeman policemen = Polizist m! Polizisten
journalist journalists *3, reporter reporters = Journalist m! Journalisten *2, Reporterin f Reporterinnen
artist artists = Künstler m Künstler *2, Künstlerin f Künstlerinnen *3
engineer engineers = Ingenieur m Ingenieure *2, Ingenieurin f Ingenieurinnen *1
writer writers *2, author authors *3 = Autor m Autoren *3, Schriftsteller m Schriftsteller *1, Autorin f Autorinnen *2
lawyer lawyers = Anwalt m Anwälte *2, Anwältin f Anwältinnen *1
gardener gardeners = Gärtner m Gärtner *3, Gärtnerin f Gärtnerinnen *1
driver drivers = Fahrer m Fahrer *4, Fahrerin f Fahrerinnen *1
mayor mayors = Bürgermeister m Bürgermeister *1, Bürgermeisterin f Bürgermeisterinnen *2
guest guests *3, visitor visitors = Gast m Gäste *3, Besucher m Besucher *1
man men = Mann m Männer
woman women = Frau f Frauen
boy boys = Junge m! Jungen
girl girls = Mädchen n Mädchen
child children *3, kid kids = Kind n Kinder

[kin]
mother mothers = Mutter f Mütter
father fathers = Vater m Väter
brother brothers = Bruder m Brüder
sister sisters = Schwester f Schwestern
uncle uncles = Onkel m Onkel
aunt aunts = Tante f Tanten
grandmother grandmothers *2, grandma grandmas = Großmutter f Großmütter *2, Oma f Omas *1
grandfather grandfathers *2, grandpa grandpas = Großvater m Großväter *2, Opa m Opas *1
son sons = Sohn m Söhne
daughter daughters = Tochter f Töchter
friend friends = Freund m Freunde *3, Freundin f Freundinnen *2
cousin cousins = Cousin m Cousins *2, Cousine f Cousinen *3

[animal]
dog dogs = Hund m Hunde
cat cats = Katze f Katzen
horse horses = Pferd n Pferde
bird birds = Vogel m Vögel
cow cows = Kuh f Kühe
rabbit rabbits = Kaninchen n Kaninchen *2, Hase m! Hasen *1
goat goats = Ziege f Ziegen
duck ducks = Ente f Enten
pig pigs = Schwein n Schweine

[food]
apple apples = Apfel m Äpfel
cake cakes = Kuchen m Kuchen *3, Torte f Torten *1
roll rolls = Brötchen n Brötchen *3, Semmel f Semmeln *1
egg eggs = Ei n Eier
orange oranges = Orange f Orangen *3, Apfelsine f Apfelsinen *1
potato potatoes = Kartoffel f Kartoffeln
tomato tomatoes = Tomate f Tomaten
pear pears = Birne f Birnen
soup soups = Suppe f Suppen
salad salads = Salat m Salate
sausage sausages = Wurst f Würste
cookie cookies *3, biscuit biscuits = Keks m Kekse *2, Plätzchen n Plätzchen *1
carrot carrots = Karotte f Karotten *2, Möhre f Möhren *1
cherry cherries = Kirsche f Kirschen

[drink]
coffee coffees = Kaffee m Kaffees
tea teas = Tee m Tees
juice juices = Saft m Säfte
beer beers = Bier n Biere
lemonade lemonades = Limonade f Limonaden

[reading]
book books = Buch n Bücher
letter letters = Brief m Briefe
newspaper newspapers *3, paper papers = Zeitung f Zeitungen
story stories *3, tale tales = Geschichte f Geschichten *3, Erzählung f Erzählungen *1
novel novels = Roman m Romane
poem poems = Gedicht n Gedichte
article articles = Artikel m Artikel *3, Beitrag m Beiträge *1
magazine magazines = Zeitschrift f Zeitschriften *2, Magazin n Magazine *1
report reports = Bericht m Berichte
postcard postcards = Postkarte f Postkarten *3, Ansichtskarte f Ansichtskarten *1

[vehicle]
car cars *4, automobile automobiles = Auto n Autos *3, Wagen m Wagen *2
bicycle bicycles *2, bike bikes *3 = Fahrrad n Fahrräder *4, Rad n Räder *1
truck trucks = Lastwagen m Lastwagen *3, Laster m Laster *1
motorcycle motorcycles = Motorrad n Motorräder
boat boats = Boot n Boote
tractor tractors = Traktor m Traktoren

[clothing]
coat coats = Mantel m Mäntel
jacket jackets = Jacke f Jacken
shirt shirts = Hemd n Hemden
dress dresses = Kleid n Kleider
skirt skirts = Rock m Röcke
sweater sweaters *3, pullover pullovers = Pullover m Pullover *3, Pulli m Pullis *1
glove gloves = Handschuh m Handschuhe
blouse blouses = Bluse f Blusen

[headwear]
hat hats = Hut m Hüte
cap caps = Mütze f Mützen *3, Kappe f Kappen *1

[thing]
chair chairs = Stuhl m Stühle
table tables = Tisch m Tische
cup cups = Tasse f Tassen
plate plates = Teller m Teller
knife knives = Messer n Messer
key keys = Schlüssel m Schlüssel
umbrella umbrellas = Regenschirm m Regenschirme *2, Schirm m Schirme *1
picture pictures *3, painting paintings *2 = Bild n Bilder *3, Gemälde n Gemälde *1
photo photos *3, photograph photographs = Foto n Fotos *3, Aufnahme f Aufnahmen *1
ball balls = Ball m Bälle
gift gifts *2, present presents *3 = Geschenk n Geschenke
flower flowers = Blume f Blumen
bottle bottles = Flasche f Flaschen
glass glasses = Glas n Gläser
guitar guitars = Gitarre f Gitarren
ticket tickets = Fahrkarte f Fahrkarten *2, Ticket n Tickets *1
ring rings = Ring m Ringe
basket baskets = Korb m Körbe
mirror mirrors = Spiegel m Spiegel
pen pens = Stift m Stifte *3, Kugelschreiber m Kugelschreiber *1
sofa sofas *2, couch couches = Sofa n Sofas *3, Couch f Couches *1

[device]
lamp lamps = Lampe f Lampen
computer computers = Computer m Computer *3, Rechner m Rechner *1
phone phones *4, telephone telephones = Telefon n Telefone *2, Handy n Handys *3
camera cameras = Kamera f Kameras *3, Fotoapparat m Fotoapparate *1
radio radios = Radio n Radios
machine machines = Maschine f Maschinen

[luggage]
suitcase suitcases = Koffer m Koffer
bag bags = Tasche f Taschen
box boxes = Kiste f Kisten *2, Schachtel f Schachteln *1
backpack backpacks = Rucksack m Rucksäcke

[opening]
door doors = Tür f Türen
window windows = Fenster n Fenster
drawer drawers = Schublade f Schubladen
gate gates = Tor n Tore
"""

# English singular, where and whither; the German noun, where (dative) and whither. A whither of
# `zu` takes the dative, any other the accusative.
PLACES = """
[place]
park in to = Park m in in
garden in into = Garten m in in
forest in into = Wald m in in
market at to = Markt m auf auf
river by to = Fluss m an an

[far]
city in to *3, town in to *2 = Stadt f in in
village in to = Dorf n in in
lake at to = See m an an
beach on to = Strand m an an
farm on to = Bauernhof m auf auf
airport at to = Flughafen m an zu
university at to = Universität f an zu *3, Uni f an zu *1

[building]
house in into = Haus n in in
school at to = Schule f in zu
station at to = Bahnhof m an zu
library in to = Bibliothek f in in *3, Bücherei f in in *1
restaurant in to = Restaurant n in in *3, Lokal n in in *1
hotel in to = Hotel n in in
church in to = Kirche f in in
theater in to = Theater n in in
museum in to = Museum n in in
hospital in to = Krankenhaus n in in *3, Klinik f in in *1
supermarket in to = Supermarkt m in in
bakery in to = Bäckerei f in zu
castle in to = Schloss n in zu *2, Burg f auf zu *1
factory in to = Fabrik f in in

[room]
kitchen in into = Küche f in in
office in into = Büro n in in
living_room in into = Wohnzimmer n in in
bedroom in into = Schlafzimmer n in in
"""

BESIDE = """
behind = hinter
next_to *3, beside = neben
in_front_of = vor
"""

# [frame: classes of what it is done to]
# English base, past, participle where it differs; `wake_up` can part around a pronoun,
# `look~for` cannot. German infinitive with a | behind a separable prefix and, behind a /, the stem
# of its 2nd and 3rd person where it changes; participle; s where the perfect takes sein.
VERBS = """
[intransitive]
sleep slept = schlafen/schläf geschlafen
wait waited = warten gewartet
play played = spielen gespielt
eat ate eaten = essen/iss gegessen
swim swam swum = schwimmen geschwommen s
wake~up woke~up woken~up = auf|wachen aufgewacht s
fall~asleep fell~asleep fallen~asleep = ein|schlafen/schläf eingeschlafen s

[activity]
work worked = arbeiten gearbeitet
laugh laughed = lachen gelacht
dance danced = tanzen getanzt
sing sang sung = singen gesungen
cry cried = weinen geweint
cook cooked = kochen gekocht
talk talked *3, chat chatted = reden geredet *3, plaudern geplaudert
study studied = lernen gelernt *3, studieren studiert *1
shop shopped = ein|kaufen eingekauft
watch~television watched~television *2, watch~TV watched~TV *3 = fern|sehen/sieh ferngesehen
have~breakfast had~breakfast = frühstücken gefrühstückt

[motion: place building far room]
go went gone = gehen gegangen s
run ran run = laufen/läuf gelaufen s *3, rennen gerannt s *2
walk walked = gehen gegangen s *3, laufen/läuf gelaufen s *2, spazieren spaziert s *1
hurry hurried = eilen geeilt s
come~back came~back come~back *3, return returned *2 = zurück|kommen zurückgekommen s *3, zurück|kehren zurückgekehrt s *2

[motion: far]
drive drove driven = fahren/fähr gefahren s
travel traveled = reisen gereist s *2, fahren/fähr gefahren s *1

[transitive: food drink reading vehicle clothing headwear thing device luggage]
buy bought *4, purchase purchased = kaufen gekauft *4, erwerben/erwirb erworben *1
sell sold = verkaufen verkauft
need needed = brauchen gebraucht *3, benötigen benötigt *1
look~for looked~for *3, search~for searched~for = suchen gesucht
find found = finden gefunden
bring brought = mit|bringen mitgebracht
forget forgot forgotten = vergessen/vergiss vergessen
pay~for paid~for = bezahlen bezahlt *3, zahlen gezahlt *1
choose chose chosen *3, select selected *1 = aus|wählen ausgewählt *2, aus|suchen ausgesucht *3

[transitive: reading clothing headwear thing device luggage]
lose lost = verlieren verloren
hide hid hidden = verstecken versteckt
throw_away threw_away thrown_away = weg|werfen/wirf weggeworfen
borrow borrowed = aus|leihen ausgeliehen *2, leihen geliehen *1
steal stole stolen = stehlen/stiehl gestohlen

[transitive: person kin animal food vehicle clothing headwear thing device luggage building]
see saw seen = sehen/sieh gesehen
love loved = lieben geliebt
look~at looked~at = an|sehen/sieh angesehen *3, an|schauen angeschaut *2, betrachten betrachtet *1
draw drew drawn = zeichnen gezeichnet
describe described = beschreiben beschrieben

[transitive: food]
eat ate eaten = essen/iss gegessen
cut cut = schneiden geschnitten
cook cooked *2, prepare prepared = kochen gekocht *2, zu|bereiten zubereitet *1

[transitive: drink]
drink drank drunk = trinken getrunken

[transitive: food drink]
order ordered = bestellen bestellt

[transitive: reading]
read read = lesen/lies gelesen
write wrote written = schreiben geschrieben *4, verfassen verfasst *1

[transitive: vehicle device]
repair repaired *2, fix fixed *3 = reparieren repariert

[transitive: clothing]
wear wore worn = tragen/träg getragen
put_on put_on = an|ziehen angezogen
take_off took_off taken_off = aus|ziehen ausgezogen *3, ab|legen abgelegt *1
iron ironed = bügeln gebügelt

[transitive: headwear]
wear wore worn = tragen/träg getragen
put_on put_on = auf|setzen aufgesetzt
take_off took_off taken_off = ab|nehmen/nimm abgenommen *3, ab|setzen abgesetzt *2

[transitive: clothing vehicle]
wash washed = waschen/wäsch gewaschen

[transitive: opening luggage]
open opened = öffnen geöffnet *2, auf|machen aufgemacht *3
close closed *3, shut shut = schließen geschlossen *2, zu|machen zugemacht *3

[transitive: luggage]
pack packed = packen gepackt
unpack unpacked = aus|packen ausgepackt

[transitive: device]
turn_on turned_on *3, switch_on switched_on *2 = ein|schalten eingeschaltet *3, an|machen angemacht *2
turn_off turned_off *3, switch_off switched_off *2 = aus|schalten ausgeschaltet *3, aus|machen ausgemacht *2

[transitive: room]
tidy_up tidied_up *2, clean_up cleaned_up *3 = auf|räumen aufgeräumt

[transitive: room opening thing]
clean cleaned = putzen geputzt *3, reinigen gereinigt *1

[transitive: person kin building]
visit visited = besuchen besucht

[transitive: person kin]
invite invited = ein|laden/läd eingeladen
call called *3, phone phoned = an|rufen angerufen
pick_up picked_up = ab|holen abgeholt
meet met = treffen/triff getroffen
know knew known = kennen gekannt
understand understood = verstehen verstanden
wake_up woke_up woken_up = wecken geweckt *3, auf|wecken aufgeweckt *1
greet greeted = begrüßen begrüßt *2, grüßen gegrüßt *1
miss missed = vermissen vermisst
kiss kissed = küssen geküsst

[transitive: animal]
feed fed = füttern gefüttert
watch watched = beobachten beobachtet

[dative: person kin]
help helped *4, assist assisted = helfen/hilf geholfen
thank thanked = danken gedankt
answer answered = antworten geantwortet
follow followed = folgen gefolgt s
listen~to listened~to = zu|hören zugehört
trust trusted = vertrauen vertraut
congratulate congratulated = gratulieren gratuliert
forgive forgave forgiven = verzeihen verziehen *2, vergeben/vergib vergeben *1

[giving: food reading clothing headwear thing device luggage]
give gave given = geben/gib gegeben *3, schenken geschenkt *2
show showed shown = zeigen gezeigt
send sent = schicken geschickt *3, senden gesendet *1
bring brought = bringen gebracht
lend lent = leihen geliehen

[telling: reading]
read read = vor|lesen/lies vorgelesen
explain explained = erklären erklärt *3, erläutern erläutert *1
recommend recommended = empfehlen/empfiehl empfohlen

[telling: reading thing device luggage]
return returned = zurück|geben/gib zurückgegeben
hand_over handed_over = übergeben/übergib übergeben *2, überreichen überreicht *1

[auf accusative: person kin]
wait~for waited~for = warten gewartet
look~after looked~after = auf|passen aufgepasst

[an accusative: person kin]
think~of thought~of *2, think~about thought~about *3 = denken gedacht

[mit dative: person kin]
talk~to talked~to *3, speak~with spoke~with spoken~with *2 = sprechen/sprich gesprochen *3, reden geredet *2

[über accusative: person kin reading]
talk~about talked~about *3, speak~about spoke~about spoken~about *2 = sprechen/sprich gesprochen *3, reden geredet *2
laugh~about laughed~about = lachen gelacht

[von dative: vehicle thing building]
dream~of dreamed~of = träumen geträumt

[mit dative: animal]
play~with played~with = spielen gespielt

[um accusative: food drink reading]
ask~for asked~for = bitten gebeten

[that]
say said = sagen gesagt
believe believed *3, think thought *2 = glauben geglaubt *3, denken gedacht *2
hope hoped = hoffen gehofft
know knew known = wissen gewusst
hear heard = hören gehört
notice noticed = bemerken bemerkt *2, merken gemerkt *3

[whether]
ask asked = fragen gefragt

[weather]
rain rained = regnen geregnet
snow snowed = schneien geschneit
"""

STATIVE = {"need", "see", "love", "know", "understand", "trust", "believe", "think", "hope", "hear"}
STATIVE |= {"forget", "miss", "notice", "find", "lose", "forgive", "like"}

# A / behind a German adjective introduces the stem that takes endings, where it is another.
ADJECTIVES = """
[person]
young = jung
friendly *2, kind *2, nice *1 = freundlich *3, nett *2
clever *2, smart *3 = klug *3, schlau *1
famous *3, well-known = berühmt *3, bekannt *1
rich *3, wealthy = reich *3, wohlhabend *1
strange *2, odd *1 = seltsam *2, merkwürdig *1
polite = höflich
curious = neugierig
brave *3, courageous = mutig *3, tapfer *1
old = alt
lazy = faul

[state]
tired = müde
happy *3, glad = glücklich *2, froh *1
sad = traurig
hungry = hungrig
sick *3, ill *1 = krank
healthy = gesund
angry *3, furious = wütend *2, zornig *1
content *1, satisfied *2 = zufrieden

[animal]
big *3, large *2 = groß
small *2, little *3 = klein
old = alt
black = schwarz
white = weiß
brown = braun
fat = dick

[food]
fresh = frisch
sweet = süß
delicious *3, tasty *2 = lecker *2, köstlich *1
big *3, large *2 = groß
small *2, little *1 = klein
cheap *3, inexpensive = billig *2, günstig *1

[drink]
cold = kalt
warm = warm
hot = heiß
sweet = süß
delicious *3, tasty *2 = lecker *2, köstlich *1

[reading]
interesting = interessant *3, spannend *2
boring *3, dull = langweilig *3, öde *1
long = lang
short = kurz
new = neu
old = alt
funny = lustig *3, komisch *1
important = wichtig
beautiful *3, lovely *1 = schön *3, wunderbar *1

[object]
new = neu
old = alt
big *3, large *2 = groß
small *2, little *1 = klein
expensive = teuer/teur
cheap *3, inexpensive = billig *2, günstig *1
heavy = schwer
red = rot
blue = blau
green = grün
yellow = gelb
black = schwarz
white = weiß
beautiful *3, lovely *1 = schön *3, hübsch *1
dirty = schmutzig *3, dreckig *1
dark = dunkel/dunkl
round = rund
modern = modern

[place]
old *3, ancient = alt
new = neu
big *3, large *2 = groß
small *2, little *2 = klein
beautiful *3, lovely *1 = schön *3, hübsch *1
quiet = ruhig *3, still *1
loud *2, noisy *2 = laut
dark = dunkel/dunkl
"""

ADVERBS = """
[manner]
slowly = langsam
quickly *3, fast *2 = schnell *3, rasch *1
quietly = leise
loudly = laut
carefully = vorsichtig *3, sorgfältig *2
happily = fröhlich
patiently = geduldig
alone = allein *3, alleine *1
secretly = heimlich

[frequency]
often *3, frequently *1 = oft *3, häufig *1
always = immer *4, stets *1
sometimes = manchmal *4, gelegentlich *1
never = nie *3, niemals *1
rarely *2, seldom *1 = selten
usually *3, normally *1 = meistens *3, normalerweise *2

[now]
today = heute
now = jetzt *4, nun *1
at_the_moment = im_Moment *2, gerade *3, zurzeit *1
this_evening *2, tonight *3 = heute_Abend
this_week = diese_Woche *3, in_dieser_Woche *1
this_morning = heute_Morgen *3, heute_früh *1

[habit]
every_day *3, daily *1 = jeden_Tag *3, täglich *1
every_morning = jeden_Morgen
every_evening = jeden_Abend
every_week = jede_Woche
on_weekends = am_Wochenende
in_the_afternoon = am_Nachmittag *3, nachmittags *2
at_night = in_der_Nacht *1, nachts *3
after_work = nach_der_Arbeit
before_dinner = vor_dem_Abendessen

[past]
yesterday = gestern
last_week = letzte_Woche *3, vergangene_Woche *1
last_year = letztes_Jahr *3, im_letzten_Jahr *2
last_month = letzten_Monat *2, im_letzten_Monat *1
last_night = gestern_Abend *3, letzte_Nacht *2
last_summer = letzten_Sommer *2, im_letzten_Sommer *1
yesterday_morning = gestern_Morgen *2, gestern_früh *1
yesterday_evening = gestern_Abend
two_days_ago = vor_zwei_Tagen
three_weeks_ago = vor_drei_Wochen
a_year_ago = vor_einem_Jahr
the_day_before_yesterday = vorgestern

[future]
tomorrow = morgen
next_week = nächste_Woche *3, kommende_Woche *1
next_year = nächstes_Jahr *3, im_nächsten_Jahr *2
next_month = nächsten_Monat *2, im_nächsten_Monat *1
soon = bald
tonight *3, this_evening *2 = heute_Abend
in_an_hour = in_einer_Stunde
in_two_days = in_zwei_Tagen
the_day_after_tomorrow = übermorgen
"""

SEASONS = "spring=Frühling summer=Sommer fall=Herbst winter=Winter"
MONTHS = "January=Januar March=März April=April May=Mai June=Juni July=Juli October=Oktober"
DAYS = "Monday=Montag Tuesday=Dienstag Wednesday=Mittwoch Thursday=Donnerstag Friday=Freitag"
DAYS += " Saturday=Samstag Sunday=Sonntag"
COUNTS = "two=zwei three=drei four=vier five=fünf six=sechs seven=sieben eight=acht ten=zehn"
MEN = "Peter Paul Thomas Max Felix Jonas Karl Martin".split()
WOMEN = "Anna Maria Lena Julia Clara Sophie Emma Lisa".split()

# A German link that is a main clause's (its verb stays second) ends in +.
LINKS = """
[reason]
because = weil *6, da *2, denn+ *2
[contrast]
although *3, even_though *2 = obwohl *4, obgleich *1
[condition]
if *3, when *2 = wenn *4, falls *1
[order]
before = bevor *4, ehe *1
[purpose]
to *3, in_order_to *1 = um
[that]
that = dass
[whether]
whether *2, if *2 = ob
[and]
and = und+
[but]
but = aber+ *4, doch+ *1
"""
